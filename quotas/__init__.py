"""May this request spend? Limits, holds, counters, and the drain from the usage stream to the log."""
