"""The web application: pages for people, JSON and CSV for programs, from one store."""
