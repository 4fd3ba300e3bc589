//! The functions of PostgreSQL that are known to be harmless on a standby.

use super::words::{WordSet, sorted};

/// The names of the functions that may run on a standby and give there what they give on the primary.
///
/// In lower case, or as they stand between quotes. The union of PostgreSQL 13 to 18; every built-in function with such
/// a name is harmless. A function of that name which a user made (an overload for another type, or the name of a
/// version newer than the server) cannot be told apart.
pub(super) static HARMLESS: WordSet = WordSet::new(|| {
    sorted(&[
        AGGREGATES, WINDOW, MATHS, TEXT, BYTES, TIME, ARRAYS, RANGES, JSON, SEARCH, GEOMETRY, NETWORK, XML, ENUMS,
        TYPES, SETS, NAMES, OPERATIONS, VOLATILE,
    ])
});

const AGGREGATES: &str = "
    any_value array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop covar_samp every json_agg
    json_object_agg jsonb_agg jsonb_object_agg max min mode percentile_cont percentile_disc range_agg
    range_intersect_agg regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
    stddev stddev_pop stddev_samp string_agg sum var_pop var_samp variance xmlagg json_agg_strict
    json_object_agg_strict json_object_agg_unique json_object_agg_unique_strict jsonb_agg_strict
    jsonb_object_agg_strict jsonb_object_agg_unique jsonb_object_agg_unique_strict
";

const WINDOW: &str =
    "cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number";

const MATHS: &str = "
    abs acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh cbrt ceil ceiling cos cosd cosh cot cotd
    degrees div erf erfc exp factorial floor gamma gcd lcm lgamma ln log log10 min_scale mod pi pow power radians
    round scale sign sin sind sinh sqrt tan tand tanh trim_scale trunc width_bucket
";

const TEXT: &str = "
    ascii bit_length btrim casefold char_length character_length chr concat concat_ws convert convert_from convert_to
    format initcap is_normalized left length like lower lpad ltrim normalize notlike octet_length overlay parse_ident
    position quote_ident quote_literal quote_nullable regexp_count regexp_instr regexp_like regexp_match
    regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr repeat replace reverse
    right rpad rtrim split_part starts_with string_to_array string_to_table strpos substr substring text_larger
    text_smaller to_ascii to_bin to_char to_hex to_number to_oct translate unicode_assigned unistr upper
";

const BYTES: &str = "
    bit_count crc32 crc32c decode encode get_bit get_byte hashtext hashtextextended md5 set_bit set_byte sha224 sha256
    sha384 sha512 uuid_extract_timestamp uuid_extract_version
";

// These read the session's time zone and style, as a cast does.
const TIME: &str = "
    age date_add date_bin date_part date_subtract date_trunc extract isfinite justify_days justify_hours
    justify_interval make_date make_interval make_time make_timestamp make_timestamptz now overlaps
    statement_timestamp timezone to_date to_timestamp transaction_timestamp
";

const ARRAYS: &str = "
    array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position array_positions
    array_prepend array_remove array_replace array_reverse array_sort array_to_string array_upper cardinality
    trim_array
";

const RANGES: &str = "
    datemultirange daterange int4multirange int4range int8multirange int8range isempty lower_inc lower_inf multirange
    nummultirange numrange range_merge tsmultirange tsrange tstzmultirange tstzrange upper_inc upper_inf
";

const JSON: &str = "
    array_to_json json json_array json_array_elements json_array_elements_text json_array_length json_arrayagg
    json_build_array json_build_object json_each json_each_text json_exists json_extract_path json_extract_path_text
    json_object json_object_keys json_objectagg json_populate_record json_populate_recordset json_query json_scalar
    json_serialize json_strip_nulls json_table json_to_record json_to_recordset json_typeof json_value
    jsonb_array_elements jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each
    jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_keys
    jsonb_path_exists jsonb_path_exists_tz jsonb_path_match jsonb_path_match_tz jsonb_path_query
    jsonb_path_query_array jsonb_path_query_array_tz jsonb_path_query_first jsonb_path_query_first_tz
    jsonb_path_query_tz jsonb_populate_record jsonb_populate_record_valid jsonb_populate_recordset jsonb_pretty
    jsonb_set jsonb_set_lax jsonb_strip_nulls jsonb_to_record jsonb_to_recordset jsonb_typeof row_to_json to_json
    to_jsonb
";

// Not ts_stat and ts_rewrite: they run a query given as text.
const SEARCH: &str = "
    array_to_tsvector json_to_tsvector jsonb_to_tsvector numnode phraseto_tsquery plainto_tsquery querytree setweight
    strip to_tsquery to_tsvector ts_delete ts_filter ts_headline ts_rank ts_rank_cd tsquery_phrase tsvector_to_array
    websearch_to_tsquery
";

const GEOMETRY: &str = "
    area bound_box box center circle diagonal diameter height isclosed ishorizontal isopen isparallel isperp
    isvertical line lseg npoints path point polygon radius slope width
";

const NETWORK: &str = "
    abbrev broadcast family host hostmask inet_merge inet_same_family macaddr8_set7bit masklen netmask network
    set_masklen
";

// Not query_to_xml and its kin: they run a query given as text, or read a whole schema.
const XML: &str = "
    xml xml_is_well_formed xml_is_well_formed_content xml_is_well_formed_document xmlcomment xmltext xpath
    xpath_exists
";

const ENUMS: &str = "enum_first enum_last enum_range";

// A type used like a function, where pg_catalog has that function.
const TYPES: &str = "
    bool bpchar cidr date float4 float8 int2 int4 int8 interval macaddr money name numeric text time timestamp
    timestamptz timetz varbit varchar num_nonnulls num_nulls pg_column_size pg_input_error_info pg_input_is_valid
    pg_size_bytes pg_size_pretty pg_typeof
";

// What some operators and hash indexes call, as people sometimes do: immutable, all of them.
const OPERATIONS: &str = "
    array_eq array_larger array_ne array_smaller arraycontained arraycontains arrayoverlap bitcat booleq boolne
    box_center byteacat bytealike cash_words circle_center date_eq date_ge date_gt date_larger date_le date_lt
    date_mi date_mii date_ne date_pli date_smaller elem_contained_by_range float4send float8div float8eq float8ge
    float8gt float8larger float8le float8lt float8mi float8mul float8ne float8pl float8send float8smaller hash_array
    hash_array_extended hash_numeric hash_numeric_extended hash_record hash_record_extended hashbpchar hashchar
    hashenum hashfloat4 hashfloat8 hashinet hashint2 hashint4 hashint4extended hashint8 hashint8extended hashname
    hashoid hashvarlena int2div int2mi int2mul int2pl int2send int4abs int4div int4eq int4ge int4gt int4inc
    int4larger int4le int4lt int4mi int4mod int4mul int4ne int4pl int4send int4smaller int8abs int8div int8eq int8ge
    int8gt int8inc int8larger int8le int8lt int8mi int8mod int8mul int8ne int8pl int8send int8smaller interval_div
    interval_eq interval_mi interval_mul interval_pl json_array_element json_array_element_text json_object_field
    json_object_field_text jsonb_array_element jsonb_array_element_text jsonb_cmp jsonb_concat jsonb_contained
    jsonb_contains jsonb_delete jsonb_delete_path jsonb_eq jsonb_exists jsonb_exists_all jsonb_exists_any jsonb_hash
    jsonb_object_field jsonb_object_field_text lseg_center multirange_contains_elem multirange_contains_multirange
    multirange_contains_range multirange_intersect multirange_minus multirange_union numeric_abs numeric_add
    numeric_div numeric_eq numeric_ge numeric_gt numeric_inc numeric_larger numeric_le numeric_lt numeric_mod
    numeric_mul numeric_ne numeric_smaller numeric_sub numeric_uminus on_pb on_ppath path_center pclose pg_lsn
    point_distance poly_center popen range_adjacent range_after range_before range_contained_by range_contains
    range_contains_elem range_eq range_intersect range_minus range_ne range_overlaps range_union text_ge text_gt
    text_le text_lt textcat texteq texticlike texticregexeq textlen textlike textne textnlike textregexeq
    textregexne timestamp_eq timestamp_ge timestamp_gt timestamp_larger timestamp_le timestamp_lt timestamp_mi
    timestamp_ne timestamp_smaller uuid_cmp uuid_eq uuid_hash uuid_hash_extended uuid_ne
";

const SETS: &str = "generate_series generate_subscripts unnest";

// The same on each server of a cluster for the same login; only search_path can differ.
const NAMES: &str = "current_database current_schema current_schemas getdatabaseencoding pg_collation_for";

// Volatile, yet without effect:
// - array_sample, array_shuffle, random, random_normal draw from a generator that only
//   setseed, which is not here, makes part of the session;
// - gen_random_uuid, uuidv4, uuidv7 draw from the system's generator;
// - clock_timestamp and timeofday read the clock;
// - pg_sleep and its kin wait.
const VOLATILE: &str = "
    array_sample array_shuffle clock_timestamp gen_random_uuid pg_sleep pg_sleep_for pg_sleep_until random
    random_normal timeofday uuidv4 uuidv7
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_listed_twice_or_could_not_be_looked_up() {
        let names: Vec<_> = HARMLESS.iter().collect();
        assert!(names.is_sorted_by(|a, b| a < b));
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        for name in names {
            assert!(name.len() < 32 && name.bytes().all(lower), "{name}");
        }
    }

    #[test]
    fn what_touches_more_than_its_arguments_is_not_listed() {
        let names = "nextval currval lastval setval set_config current_setting setseed txid_current
            pg_current_xact_id pg_advisory_lock pg_notify lo_get lo_put dblink query_to_xml table_to_xml
            cursor_to_xml ts_stat ts_rewrite pg_terminate_backend pg_read_file pg_is_in_recovery regclass
            to_regclass version inet_server_addr treat currtid2 current_query pg_relation_size";
        for name in names.split_whitespace() {
            assert!(!HARMLESS.contains(name.as_bytes()), "{name}");
        }
    }
}
