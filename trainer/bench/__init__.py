"""How fast parts of a train step are on the GPU that is there, or what they take of one that is not."""
