"""A checkpoint that is not what was written, as those who read parts of it say it."""


class Damaged(Exception):
    """What is wrong, naming the array or the file. Whoever knows the checkpoint says what to do."""
