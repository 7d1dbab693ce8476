"""The research notebook without Streamlit: stored figures, their views, and exports."""
