"""What is done when something goes wrong inside of a run: a bad step, a hang, a signal, replicas that differ."""
