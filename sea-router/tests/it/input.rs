
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tmp_latency() {
    use read_router_scenarios::*;
    let st = Stage::<super::Sea>::set(2, "CREATE TABLE r (id int primary key, v bigint); insert into r values (1,0)", read_router::Config::default(), &[]).await;
    for tasks in [1, 4, 16] {
        let before = st.db.stats();
        let t0 = std::time::Instant::now();
        let hs: Vec<_> = (0..tasks).map(|_| { let s = st.db.new_session(); tokio::spawn(async move {
            for i in 0..300 {
                s.execute(&format!("UPDATE r SET v={i} WHERE id=1")).await.unwrap();
                s.number(Some(read_router::ReadClass::MustSeeMyWrite.into()), "SELECT v FROM r WHERE id=1").await.unwrap();
            }}) }).collect();
        for h in hs { h.await.unwrap(); }
        let a = st.db.stats();
        println!("tasks {tasks}: cycle {:?} waits {} avg wait {:?} probes {} own {} fallbacks {}", t0.elapsed()/300, a.waits-before.waits, (a.waited-before.waited)/((a.waits-before.waits) as u32).max(1), a.probes-before.probes, a.own_samples-before.own_samples, a.fallbacks-before.fallbacks);
    }
}
