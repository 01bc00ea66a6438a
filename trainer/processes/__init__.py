"""Several processes that train as one: how they find each other, watch each other, are started and stopped."""
