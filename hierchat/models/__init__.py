"""Models: find them in the catalogue, fetch them into the cache, load them.

From below: architectures (what is known of each), formats (what files hold), fetch (into the cache, in the form that
loads), load (ready to compute). Import from the modules themselves: the packages import nothing, so that reading the
catalogue costs no torch.
"""
