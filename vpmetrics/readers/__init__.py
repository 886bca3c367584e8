"""Files of embeddings, scores, trial lists and challenge folders."""
