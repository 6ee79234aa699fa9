"""Models of which each rank has a part (FSDP2): cut in each world, copied to other ranks, put together after a loss.

Nothing here decides from which step a world continues: that is `sessions.recovery`.
"""
