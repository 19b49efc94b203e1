"""What readers in C share: one compiled library, which is not linked to Python, and what it hands over.

Without it all is read by Python, to the same tables, in several times the time.
"""
