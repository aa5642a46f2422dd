"""Models into the cache: from the hub, from a wheel of the package registry, from a folder or file; converted there."""
