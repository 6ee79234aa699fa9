"""Sessions: training scripts that keep their memory while the world changes.

Scripts use `session`. `machine` decides (pure), `worlds` moves from world to world, `memory` holds the training state.
"""
