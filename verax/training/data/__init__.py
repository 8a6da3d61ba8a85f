"""What training reads: data sets, streams, batches and the pieces that a batch is cut into."""
