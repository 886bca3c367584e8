"""One utterance searched among one reference per speaker."""
