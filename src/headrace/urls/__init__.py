"""What addresses of servers have in common: settings after the question mark, encryption."""
