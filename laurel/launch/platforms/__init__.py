"""How each platform is asked: submit, state, logs, stop. All of it through the platform's own commands."""
