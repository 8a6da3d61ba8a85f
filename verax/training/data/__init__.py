"""What training reads: data sets, batches made of their records, and the pieces that a batch is worked on in."""
