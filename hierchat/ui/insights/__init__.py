"""What the Insights view shows, as HTML. Pure functions of what was measured."""
