"""`anbar calibrate`: measures a running engine over its public API and writes its cost file."""
