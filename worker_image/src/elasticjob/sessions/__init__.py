"""Sessions: a script that stays in memory while the world around it changes.

`session` is what a script uses, `machine` decides (pure), `worlds` goes from world to world, `memory` holds the state.
"""
