"""A loaded model with its databases, draft models and measured costs."""
