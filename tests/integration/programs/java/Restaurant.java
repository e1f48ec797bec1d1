import io.ray.api.ActorHandle;
import io.ray.api.ObjectRef;
import io.ray.api.Ray;

/** Two Java actors that wait for each other. */
public class Restaurant {
  public static class Cook {
    private ActorHandle<Waiter> waiter;
    public boolean meet(ActorHandle<Waiter> waiter) { this.waiter = waiter; return true; }
    public String cook() { return waiter.task(Waiter::serve).remote().get(); }
  }
  public static class Waiter {
    private ActorHandle<Cook> cook;
    public boolean meet(ActorHandle<Cook> cook) { this.cook = cook; return true; }
    public String order() { return cook.task(Cook::cook).remote().get(); }
    public String serve() { return "served"; }
  }
  public static void main(String[] args) {
    Ray.init();
    ActorHandle<Cook> cook = Ray.actor(Cook::new).remote();
    ActorHandle<Waiter> waiter = Ray.actor(Waiter::new).remote();
    cook.task(Cook::meet, waiter).remote().get();
    waiter.task(Waiter::meet, cook).remote().get();
    ObjectRef<String> order = waiter.task(Waiter::order).remote();
    System.out.println("ready"); System.out.flush();
    System.out.println(order.get());
  }
}
