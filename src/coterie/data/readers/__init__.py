"""Files of a user's own: tables, arrays, images."""
