"""Named experiments: one file each, with an `EXPERIMENT`; listed in registry.py."""
