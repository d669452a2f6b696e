"""`coterie api`: predictions, places of new clients and clusters of trained runs, over HTTP."""
