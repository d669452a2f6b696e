"""What a federation and a run say of their clients: are they alike, why is one in its cluster, what sets it apart."""
