"""`python -m tools.dashboards`: write the dashboards of the chart."""

from tools.dashboards.boards import FOLDER, write_boards

if __name__ == "__main__":
    write_boards(FOLDER)
