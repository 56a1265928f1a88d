from pyspark.sql import Column, functions as F
from router import *
from pydantic import Field
DDL="game string, gamer_id string, ts timestamp, session_id string, amount double, type string, bid bigint, tricks bigint, color string, card string, col_foo_1 bigint"
class Js(Decoder):
    "x"
    ddl: str = Field(alias="schema", default=DDL)
    def decode(self, raw):
        p = raw.withColumn("_p", F.from_json(F.col("value").cast("string"), self.ddl+", _c string", {"columnNameOfCorruptRecord":"_c"}))
        bad = F.col("_p").isNull() | F.col("_p._c").isNotNull()
        ev = F.struct(*[F.col("_p."+n.split()[0]).alias(n.split()[0]) for n in self.ddl.split(", ")])
        return p.withColumns({"event": F.when(~bad, ev), "_error": F.when(bad, F.lit("bad json"))}).drop("_p")
class Sql(Rule):
    "x"
    main_option="where"
    where: str
    def matches(self): return F.expr(self.where)
class Tables(TableSink):
    "x"
    main_option="template"
    template: str
    columns: str = "seen"
    def table(self): return F.concat(F.lit("silver."), F.col("event.game"))
class Delta(TableSink):
    "x"
    main_option="name"
    name: str
    def table(self): return self.name
@hookimpl
def router_decoders(): return {"json": Js}
@hookimpl
def router_rules(): return {"sql": Sql}
@hookimpl
def router_sinks(): return {"tables": Tables, "delta": Delta}
