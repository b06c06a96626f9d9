"""Masks: which entries stay zero, kept beside the model."""
