import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.storm.blobstore.BlobStoreAclHandler;
import org.apache.storm.generated.SettableBlobMeta;
import org.apache.storm.utils.ConfigUtils;
import org.apache.storm.utils.Utils;

/** Puts a file into Storm's blobstore, as `storm blobstore create --file FILE --acl o::rwa KEY` does. */
public final class CreateBlob {
    public static void main(String[] arguments) throws Exception {
        var access = BlobStoreAclHandler.parseAccessControl("o::rwa");
        try (var store = Utils.getClientBlobStore(ConfigUtils.readStormConfig());
             var out = store.createBlob(arguments[0], new SettableBlobMeta(java.util.List.of(access)))) {
            Files.copy(Path.of(arguments[1]), out);
        }
        System.exit(0);
    }
}
