"""`anbar up`: engines and router as one thing that starts, runs and stops as a whole."""
