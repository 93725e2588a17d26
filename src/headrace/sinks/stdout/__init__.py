"""Changes as lines of text: for programs as JSON, for people with colours."""
