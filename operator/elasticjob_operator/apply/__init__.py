"""Carries a plan out, in the one safe order, and builds the objects that are sent.

No decisions: what should be done is in the plan.
"""
