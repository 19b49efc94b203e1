"""Allocator histories replayed: peaks, fragmentation, and who held the memory."""
