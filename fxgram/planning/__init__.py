"""The planner: what each way to contract a use costs, in time and memory; which one is taken."""
