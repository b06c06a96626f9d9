"""Whole units really removed: plans, budgets, and their application to a live model."""
