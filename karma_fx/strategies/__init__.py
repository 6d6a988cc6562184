"""Ways to choose actions. One file each; all share the planner's costs and placement."""
