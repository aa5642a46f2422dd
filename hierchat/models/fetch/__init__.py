"""Fetch models into the cache, from the hub, a wheel of the package registry, a folder or file; convert them there."""
