"""What a run says of itself: metrics declared once, loggers, timers, samples, progress and the curve."""
