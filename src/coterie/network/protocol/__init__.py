"""What the server and a client say to each other, and how it is checked."""
