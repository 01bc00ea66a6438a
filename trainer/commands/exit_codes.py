"""What the process ends with, where it is not 0."""

FAILED, WRONG_INPUT, SIGNALLED = 1, 2, 128
"""A failure of the machine; what a user can mend; a signal, whose number is added."""
