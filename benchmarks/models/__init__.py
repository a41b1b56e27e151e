"""The models that are timed. None couples samples, shares a weight or draws random numbers."""
