"""Carries out a plan in the only safe order, and builds the objects to send.

Makes no decisions: the plan contains them.
"""
