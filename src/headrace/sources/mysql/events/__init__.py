"""Binary log events: types, table maps, compressed events, query sessions."""
