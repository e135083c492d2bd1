"""Where arrays live: the only files that name a device library."""
