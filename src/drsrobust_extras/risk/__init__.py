"""Plans of protections within a budget, the risk of a fleet, and what a protection costs in time."""
