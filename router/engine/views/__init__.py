"""Views: tables that are computed from other tables, all tables of one in one Spark job, when their sources change."""
