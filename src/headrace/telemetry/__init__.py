"""What a process remembers of its pipes: events and measurements that survive a restart."""
