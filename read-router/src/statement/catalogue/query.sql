-- What the text of a statement does not show: one row for each fact. Readable by any role; takes no lock.
-- what, id, schema, name, info, body, refs (class and id of each object that it uses)
WITH extension AS (
  SELECT d.classid, d.objid, x.extname
  FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension x ON x.oid = d.refobjid
  WHERE d.deptype = 'e' AND d.refclassid = 'pg_catalog.pg_extension'::regclass
), tree AS (
  SELECT 'r' AS class, c.oid AS id, c.relnamespace AS space, c.relname AS name, r.ev_action::text AS text
  FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
  WHERE c.oid >= 16384 AND r.ev_type = '1' AND c.relkind <> 'm'
  UNION ALL
  SELECT 'r', c.oid, c.relnamespace, c.relname, p.polqual::text
  FROM pg_catalog.pg_policy p JOIN pg_catalog.pg_class c ON c.oid = p.polrelid
  WHERE p.polcmd IN ('*', 'r')
  UNION ALL
  SELECT 'r', c.oid, c.relnamespace, c.relname, d.adbin::text
  FROM pg_catalog.pg_attrdef d
  JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated = 'v'
  JOIN pg_catalog.pg_class c ON c.oid = d.adrelid
  UNION ALL
  SELECT 't', t.oid, t.typnamespace, t.typname, c.conbin::text
  FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_type t ON t.oid = c.contypid
  WHERE t.oid >= 16384
  UNION ALL
  SELECT 'f', p.oid, p.pronamespace, p.proname, p.prosqlbody::text
  FROM pg_catalog.pg_proc p
  WHERE p.oid >= 16384 AND p.prosqlbody IS NOT NULL
  UNION ALL
  SELECT 'f', p.oid, p.pronamespace, p.proname, p.proargdefaults::text
  FROM pg_catalog.pg_proc p
  WHERE p.oid >= 16384 AND p.proargdefaults IS NOT NULL
), edge (class, id, space, name, ref) AS (
  SELECT t.class, t.id, t.space, t.name,
    CASE WHEN m[1] = 'hasForUpdate' THEN 'x1' WHEN m[1] = 'relid' THEN 'r' || m[2] WHEN m[1] ~ 'type$' THEN 't' || m[2]
      WHEN m[1] IN ('opno', 'eqop', 'sortop') THEN 'o' || m[2] ELSE 'f' || m[2] END
  FROM tree t, LATERAL regexp_matches(t.text,
    ':(funcid|aggfnoid|winfnoid|startInRangeFunc|endInRangeFunc|tsmhandler|opno|eqop|sortop|relid|\w*type|hasForUpdate) ([1-9]\d*|true)', 'g') m
  WHERE m[1] = 'hasForUpdate' OR m[1] !~ 'type$|op' OR m[2]::bigint >= 16384
  UNION
  SELECT 'f', p.oid, p.pronamespace, p.proname, 't' || t
  FROM pg_catalog.pg_proc p, unnest(p.proargtypes::oid[] || p.prorettype || p.proallargtypes) t
  WHERE p.oid >= 16384 AND t >= 16384
  UNION
  SELECT 'f', p.oid, p.pronamespace, p.proname, 'f' || f
  FROM pg_catalog.pg_aggregate a JOIN pg_catalog.pg_proc p ON p.oid = a.aggfnoid,
    unnest(ARRAY[a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggserialfn, a.aggdeserialfn, a.aggmtransfn,
      a.aggminvtransfn, a.aggmfinalfn]::oid[]) f
  WHERE p.oid >= 16384 AND f <> 0
  UNION
  SELECT 'f', p.oid, p.pronamespace, p.proname, 'o' || a.aggsortop
  FROM pg_catalog.pg_aggregate a JOIN pg_catalog.pg_proc p ON p.oid = a.aggfnoid
  WHERE p.oid >= 16384 AND a.aggsortop >= 16384
  UNION
  SELECT 'r', c.oid, c.relnamespace, c.relname, 't' || a.atttypid
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  WHERE a.atttypid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'm', 'c')
  UNION
  SELECT 'r', c.oid, c.relnamespace, c.relname, 'r' || k.oid
  FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhparent
  JOIN pg_catalog.pg_class k ON k.oid = i.inhrelid
  WHERE c.relkind IN ('r', 'p') AND (k.relkind IN ('f', 'p') OR k.relpersistence <> 'p' OR k.relhassubclass)
  UNION
  SELECT 't', t.oid, t.typnamespace, t.typname, ref
  FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_range g ON t.oid IN (g.rngtypid, (to_jsonb(g)->>'rngmultitypid')::oid),
    unnest(ARRAY[
      CASE WHEN t.typtype = 'b' AND t.typelem <> 0 AND t.typlen = -1 THEN 't' || t.typelem END,
      CASE WHEN t.typtype = 'd' THEN 't' || t.typbasetype END,
      CASE WHEN t.typtype = 'c' THEN 'r' || t.typrelid END,
      't' || g.rngsubtype, 'f' || nullif(g.rngcanonical::oid, 0), 'f' || nullif(g.rngsubdiff::oid, 0)
    ] || CASE WHEN t.typtype = 'b' AND t.typcategory <> 'A' AND NOT EXISTS (
        SELECT FROM extension x WHERE x.classid = 'pg_catalog.pg_type'::regclass AND x.objid = t.oid)
      THEN ARRAY['f' || t.typinput::oid, 'f' || t.typoutput::oid, 'f' || nullif(t.typreceive::oid, 0),
        'f' || nullif(t.typsend::oid, 0)] END) ref
  WHERE t.oid >= 16384 AND ref IS NOT NULL
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = t.typrelid AND c.relkind <> 'c')
    AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_type e JOIN pg_catalog.pg_class c ON c.oid = e.typrelid
      WHERE t.typcategory = 'A' AND e.oid = t.typelem AND c.relkind <> 'c')
  UNION
  SELECT 't', w.oid, w.typnamespace, w.typname, 't' || CASE WHEN w.oid = t.oid THEN a.atttypid ELSE t.oid END
  FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
  JOIN pg_catalog.pg_type t ON t.oid = c.reltype JOIN pg_catalog.pg_type w ON w.oid IN (t.oid, t.typarray)
  WHERE a.atttypid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
  UNION
  SELECT 't', t.oid, t.typnamespace, t.typname, 'f' || k.castfunc
  FROM pg_catalog.pg_cast k JOIN pg_catalog.pg_type t ON t.oid IN (k.castsource, k.casttarget)
  WHERE k.castfunc >= 16384 AND (t.oid >= 16384 OR greatest(k.castsource, k.casttarget) < 16384)
  UNION
  SELECT 't', t.oid, t.typnamespace, t.typname, 'f' || p.amproc::oid
  FROM pg_catalog.pg_amproc p JOIN pg_catalog.pg_type t ON t.oid IN (p.amproclefttype, p.amprocrighttype)
  WHERE p.amproc >= 16384 AND (t.oid >= 16384 OR EXISTS (
    SELECT FROM pg_catalog.pg_opclass c
    WHERE c.opcfamily = p.amprocfamily AND c.opcdefault AND c.opcintype = t.oid AND c.oid >= 16384))
  UNION
  SELECT 't', t.oid, t.typnamespace, t.typname, 'o' || o.amopopr
  FROM pg_catalog.pg_amop o JOIN pg_catalog.pg_type t ON t.oid IN (o.amoplefttype, o.amoprighttype)
  WHERE o.amopopr >= 16384 AND (t.oid >= 16384 OR EXISTS (
    SELECT FROM pg_catalog.pg_opclass c
    WHERE c.opcfamily = o.amopfamily AND c.opcdefault AND c.opcintype = t.oid AND c.oid >= 16384))
)
SELECT 'G' AS what, '0' AS id, NULL::text AS schema, NULL::text AS name,
  pg_catalog.current_setting('server_encoding') AS info, NULL::text AS body, NULL::text AS refs
UNION ALL
SELECT 'B', p.oid::text, NULL, p.proname::text, p.provolatile::text, NULL, NULL
FROM pg_catalog.pg_proc p
WHERE p.oid < 16384 AND p.pronamespace = 'pg_catalog'::regnamespace
UNION ALL
SELECT 'P', '0', NULL, o.oprname::text, NULL, NULL, NULL
FROM pg_catalog.pg_operator o
WHERE o.oid < 16384
GROUP BY o.oprname
UNION ALL
SELECT 'F', p.oid::text, n.nspname::text, p.proname::text,
  concat_ws(' ', p.prokind, p.provolatile, l.lanname,
    CASE WHEN p.pronargs > 0 AND p.pronargs - p.pronargdefaults - (p.provariadic <> 0)::int <= 1 AND (
        EXISTS (SELECT FROM pg_catalog.pg_type t WHERE t.oid = p.proargtypes[0] AND t.typtype NOT IN ('b', 'e', 'r', 'm'))
        OR EXISTS (
          SELECT FROM pg_catalog.pg_cast k JOIN pg_catalog.pg_type t ON t.oid = k.castsource
          WHERE t.typtype = 'c' AND k.castcontext = 'i'))
      THEN 'field' ELSE '-' END,
    CASE WHEN EXISTS (
        SELECT FROM unnest(p.proconfig) c
        WHERE c !~* '^(search_path|timezone|datestyle|intervalstyle|work_mem|statement_timeout|lock_timeout|jit|extra_float_digits|enable_[a-z_]+)=')
      THEN 'sets' ELSE '-' END,
    x.extname),
  CASE WHEN l.lanname IN ('sql', 'plpgsql', 'internal') AND p.prokind IN ('f', 'w') THEN p.prosrc END,
  NULL
FROM pg_catalog.pg_proc p
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_language l ON l.oid = p.prolang
LEFT JOIN extension x ON x.classid = 'pg_catalog.pg_proc'::regclass AND x.objid = p.oid
WHERE p.oid >= 16384 AND p.prokind <> 'p'
UNION ALL
SELECT 'O', o.oid::text, n.nspname::text, o.oprname::text, NULL, NULL,
  concat_ws(' ', 'f' || o.oprcode::oid, 't' || nullif(o.oprleft, 0), 't' || o.oprright)
FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
WHERE o.oid >= 16384 AND o.oprcode <> 0
UNION ALL
SELECT 'R', c.oid::text, n.nspname::text, c.relname::text, c.relkind::text || c.relpersistence::text, NULL, NULL
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p', 'f', 'S') AND (c.relkind IN ('f', 'S') OR c.relpersistence <> 'p')
UNION ALL
SELECT DISTINCT 'N', c.oid::text, n.nspname::text, c.relname::text, NULL, NULL, NULL
FROM edge e JOIN pg_catalog.pg_class c ON e.ref = 'r' || c.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid >= 16384
UNION ALL
SELECT 'E', e.id::text, n.nspname::text, e.name::text, e.class, NULL, string_agg(e.ref, ' ')
FROM edge e JOIN pg_catalog.pg_namespace n ON n.oid = e.space
GROUP BY e.class, e.id, e.name, n.nspname
