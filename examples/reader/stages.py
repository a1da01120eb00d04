"""The curriculum: how hard chats are at which part of the training."""

from chat import Stage

#             documents facts   implicit fillers  one absent pair bridge   turns    again alike
FIRST = Stage((1, 1), (2, 4), 0.0, 0.0, (1.00, 0.00, 0.00, 0.00), (3, 8), 0.0)
"""Which attribute is asked for."""
SECOND = Stage((2, 4), (1, 2), 0.0, 0.0, (0.94, 0.02, 0.02, 0.02), (4, 9), 0.1, 0.9)
"""Whose."""
THIRD = Stage((2, 4), (2, 5), 0.1, 0.1, (0.70, 0.10, 0.10, 0.10), (4, 12), 0.25, 0.5)
LAST = Stage((2, 6), (2, 5), 0.25, 0.15, (0.56, 0.14, 0.14, 0.16), (6, 18), 0.3, 0.3)
STAGES = [FIRST, SECOND, THIRD, LAST]
