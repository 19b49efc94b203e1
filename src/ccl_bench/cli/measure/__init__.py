"""Commands that read runs: numbers, inspection, validation, reports, comparison, timelines, Chakra."""
