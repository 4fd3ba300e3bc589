//! What the README shows of Diesel.

/// `docs/diesel.md` is compiled with the tests; in the README stand parts of it.
#[test]
fn the_readme_shows_code_of_the_page_that_is_compiled() {
    let (readme, page) = (include_str!("../../../README.md"), include_str!("../../../docs/diesel.md"));
    let section = readme.split("### Diesel").nth(1).unwrap();
    let section = section.split("| | SeaORM").next().unwrap();
    let blocks: Vec<_> = section.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        assert!(page.contains(block), "{block}");
    }
}
